-- The inbox: which messages a consumer has handled, written in the transaction of what it did with them.
--
-- Partitioned by the day of the message (which a UUIDv7 carries in itself), not by the day of handling: a message
-- that comes again on another day meets its own partition, and the primary key refuses it there.

create table inbox (
    message_day   date        not null,
    consumer      text        collate "C" not null,
    topic         text        collate "C" not null,
    message_id    text        collate "C" not null,
    processed_at  timestamptz not null default now(),
    primary key (message_day, consumer, topic, message_id)
) partition by range (message_day);

create table inbox_default partition of inbox default;

-- The first days. The relay makes those to come.
do $$
declare day date;
begin
    for n in 0..3 loop
        day := (now() at time zone 'UTC')::date + n;
        execute format('create table %I partition of inbox for values from (%L) to (%L)',
                       'inbox_' || to_char(day, 'YYYYMMDD'), day, day + 1);
    end loop;
end $$;

comment on table inbox is 'Messages that a consumer has handled. Forgotten a day at a time, once the last of a day was handled longer ago than [inbox] retention.';
comment on column inbox.message_day is 'Day of the UUIDv7 in message_id, in UTC; 1970-01-01 for an id that carries none.';
comment on column inbox.consumer is 'Who handled it: two consumers of one topic do not hide messages from one another.';
comment on column inbox.message_id is 'The producer''s id of the message, the same on every repetition; never made by the consumer.';
