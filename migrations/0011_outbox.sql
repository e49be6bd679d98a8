-- The transactional outbox: written in the transaction of the append, published by the relay or by CDC.
--
-- Partitioned by day, so that published rows leave by dropping a partition, never by endless deletes. The default
-- partition takes what no day's partition is there for: an insert never fails for want of one.

create sequence outbox_seq;

create table outbox (
    id              uuid        not null,
    seq             bigint      not null default nextval('outbox_seq'),
    bucket          smallint    generated always as ((hashtext(aggregate_id) & 63)::smallint) stored,
    destination     text        collate "C" not null
                                constraint outbox_destination check (destination in ('events', 'paid')),
    aggregate_type  text        collate "C" not null,
    aggregate_id    text        collate "C" not null,
    event_type      text        collate "C" not null,
    payload         jsonb       not null,
    headers         jsonb       not null default '{}',
    schema_version  text        collate "C",
    tenant_id       text        collate "C",
    traceparent     text        collate "C",
    created_at      timestamptz not null default now(),
    published_at    timestamptz,
    attempts        integer     not null default 0 check (attempts >= 0),
    last_error      text,
    parked_at       timestamptz,
    primary key (id, created_at)
) partition by range (created_at);

alter sequence outbox_seq owned by outbox.seq;

create table outbox_default partition of outbox default;

-- The first days. The relay makes those to come.
do $$
declare day date;
begin
    for n in 0..3 loop
        day := (now() at time zone 'UTC')::date + n;
        execute format('create table %I partition of outbox for values from (%L) to (%L)',
                       'outbox_' || to_char(day, 'YYYYMMDD'), day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
    end loop;
end $$;

-- Small whatever the table holds: what is published leaves it.
create index outbox_unpublished on outbox (seq) where published_at is null and parked_at is null;
create index outbox_parked on outbox (parked_at) where parked_at is not null;

comment on table outbox is 'Messages to publish, written in the transaction of the event that they tell of. Per aggregate and destination they go out in the order of seq.';
comment on column outbox.id is 'The message_id, made by the producer; the same on every repetition.';
comment on column outbox.seq is 'Order of publication within an aggregate. Not the order of commits across aggregates, and it has gaps.';
comment on column outbox.bucket is 'Who publishes it: a relay worker owns buckets by session advisory lock, so one aggregate has one publisher.';
comment on column outbox.destination is 'events: the topic of [orders]; paid: the topic of [kafka].';
comment on column outbox.aggregate_id is 'The message key.';
comment on column outbox.headers is 'Headers of the message. schema_version, tenant_id and traceparent are repeated in columns, where CDC reads them.';
comment on column outbox.published_at is 'When the broker had acknowledged it; null while it is to be published, and always null under CDC.';
comment on column outbox.attempts is 'Refusals of this message by the broker; an outage is not one.';
comment on column outbox.parked_at is 'The broker refused it for good: it stands in the dead-letter topic, later messages of its aggregate went on. Set it to null to publish it after all.';
