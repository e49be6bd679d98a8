-- Windows over orders and heartbeats: the state of their consumers, with the offsets beside it.

create table window_position (
    consumer   text        collate "C" not null,
    topic      text        collate "C" not null,
    partition  integer     not null,
    next       bigint      not null,
    watermark  timestamptz,
    epoch      uuid        not null,
    updated_at timestamptz not null default now(),
    primary key (consumer, topic, partition)
);
comment on table window_position is 'Where each consumer of windows goes on, moved in the transaction of what it counted. epoch: who may write; a former owner may not.';
comment on column window_position.watermark is 'The newest event time seen in the partition, in the order of its log.';

create table kpi_order (
    order_id     uuid        primary key,
    tenant_id    text        collate "C" not null,
    placed_at    timestamptz not null,
    amount_cents bigint      not null
);
create index kpi_order_placed on kpi_order (placed_at);
comment on table kpi_order is 'Orders that were counted: a message that comes twice counts once.';

create table kpi_orders_per_minute (
    tenant_id    text        collate "C" not null,
    window_start timestamptz not null,
    orders       bigint      not null,
    amount_cents bigint      not null,
    primary key (tenant_id, window_start)
);
create index kpi_orders_per_minute_start on kpi_orders_per_minute (window_start);
comment on table kpi_orders_per_minute is 'Orders placed, by event time, in windows of a minute.';

create table kpi_orders_hour (
    tenant_id    text        collate "C" not null,
    window_start timestamptz not null,
    orders       bigint      not null,
    amount_cents bigint      not null,
    primary key (tenant_id, window_start)
);
create index kpi_orders_hour_start on kpi_orders_hour (window_start);
comment on table kpi_orders_hour is 'Orders placed, by event time, in windows of an hour, one every five minutes.';

create table kpi_late (
    order_id     uuid        primary key,
    tenant_id    text        collate "C" not null,
    placed_at    timestamptz not null,
    amount_cents bigint      not null,
    watermark    timestamptz not null,
    seen_at      timestamptz not null default now()
);
comment on table kpi_late is 'Orders that came later than allowed_lateness: in no window, and not lost.';

create table window_rejected (
    consumer    text        collate "C" not null,
    topic       text        collate "C" not null,
    partition   integer     not null,
    "offset"    bigint      not null,
    reason      text        not null,
    seen_at     timestamptz not null default now(),
    primary key (consumer, topic, partition, "offset")
);
comment on table window_rejected is 'Messages that could not be read, where they stand in their topic, and why.';

create table courier_seen (
    courier_id   text        collate "C" primary key,
    tenant_id    text        collate "C" not null,
    partition    integer     not null,
    last_seen_at timestamptz not null,
    offline      boolean     not null default false
);
create index courier_seen_online on courier_seen (partition, last_seen_at) where not offline;

create table courier_offline (
    courier_id   text        collate "C" not null,
    tenant_id    text        collate "C" not null,
    last_seen_at timestamptz not null,
    detected_at  timestamptz not null default now(),
    back_at      timestamptz,
    primary key (courier_id, last_seen_at)
);
create index courier_offline_open on courier_offline (tenant_id, detected_at) where back_at is null;
comment on table courier_offline is 'A row for each time that a courier was not heard of for longer than courier_offline_after; back_at: the heartbeat that ended it.';

alter table outbox drop constraint outbox_destination;
alter table outbox add constraint outbox_destination check (destination in ('events', 'paid', 'courier-status'));
comment on column outbox.destination is 'events: the topic of [orders]; paid: the topic of [kafka]; courier-status: [windows] status_topic.';
