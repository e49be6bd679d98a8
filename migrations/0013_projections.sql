-- Read models. A name is a view on the table of its active generation; a rebuild fills another table beside it.

create table projection_cursors (
    name               text        collate "C" not null,
    generation         integer     not null check (generation >= 1),
    shard              integer     not null,
    shards             integer     not null default 1 check (shards >= 1),
    last_processed_seq bigint      not null default 0,
    state              text        collate "C" not null
                                   constraint projection_cursor_state check (state in ('building', 'active', 'retired')),
    updated_at         timestamptz not null default now(),
    primary key (name, generation, shard),
    constraint projection_cursor_shard check (shard >= 0 and shard < shards)
);
comment on table projection_cursors is 'How far each shard of each generation has come; moved only in the transaction of its rows.';
comment on column projection_cursors.shard is 'Streams whose uuid_hash modulo shards is this.';
comment on column projection_cursors.state is 'building: beside the active one; active: what the view shows; retired: kept up to date for a way back, until dropped.';

create table orders_view_g1 (
    order_id     uuid        primary key,
    tenant_id    text        not null,
    seller_id    text        not null,
    status       text        collate "C" not null,
    version      integer     not null,
    amount_cents bigint      not null,
    courier_id   text,
    vehicle_type text,
    placed_at    timestamptz not null,
    paid_at      timestamptz,
    updated_at   timestamptz not null
);
create index on orders_view_g1 (tenant_id, order_id);
create view orders_view as
    select order_id, tenant_id, seller_id, status, version, amount_cents, courier_id, vehicle_type, placed_at, paid_at,
           updated_at
    from orders_view_g1;

-- What each order counts as; the aggregate changes only together with this row.
create table dashboard_counted_g1 (
    order_id     uuid    primary key,
    tenant_id    text    not null,
    status       text    collate "C" not null,
    version      integer not null,
    amount_cents bigint  not null
);
create table dashboard_aggregate_g1 (
    tenant_id    text   not null,
    status       text   collate "C" not null,
    orders       bigint not null,
    amount_cents bigint not null,
    primary key (tenant_id, status)
);
create view dashboard_aggregate as select tenant_id, status, orders, amount_cents from dashboard_aggregate_g1;

create table delivery_eta_g1 (
    order_id     uuid        primary key,
    tenant_id    text        not null,
    version      integer     not null,
    picked_up_at timestamptz not null,
    expected_at  timestamptz not null,
    delivered_at timestamptz
);
create index on delivery_eta_g1 (picked_up_at);
create view delivery_eta as
    select order_id, tenant_id, picked_up_at, expected_at, delivered_at
    from delivery_eta_g1 where picked_up_at > now() - interval '24 hours';

insert into projection_cursors (name, generation, shard, state)
values ('orders_view', 1, 0, 'active'), ('dashboard_aggregate', 1, 0, 'active'), ('delivery_eta', 1, 0, 'active');
