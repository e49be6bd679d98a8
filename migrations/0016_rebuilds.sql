-- Who moves a cursor, and how far a rebuild from the topic is.

alter table projection_cursors
    add column fed_by text collate "C" not null default 'runner'
        constraint projection_cursor_fed_by check (fed_by in ('runner', 'rebuild', 'kafka')),
    add column followed_since timestamptz;
-- A read model that has moved has been followed.
update projection_cursors set followed_since = updated_at where last_processed_seq > 0;

comment on column projection_cursors.fed_by is 'runner: kept up to date by every runner; rebuild, kafka: a rebuild is at it, from the store or from the topic of orders.';
comment on column projection_cursors.followed_since is 'When a runner first kept it up to date; readers that ask for a version wait for it from then on.';

create table projection_offsets (
    name        text    collate "C" not null,
    generation  integer not null,
    partition   integer not null,
    shard       integer not null,
    next_offset bigint  not null,
    end_offset  bigint  not null,
    primary key (name, generation, partition),
    constraint projection_offsets_end check (next_offset <= end_offset)
);
comment on table projection_offsets is 'How far a rebuild has read the topic of orders; moved only in the transaction of its rows. end_offset is where it ends.';
