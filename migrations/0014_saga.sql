-- Sagas on orders: durable state machines whose external calls are effects of the ledger.

create table courier (
    id            text        collate "C" primary key,
    tenant_id     text        collate "C" not null,
    vehicle_type  text        not null,
    available     boolean     not null default true
);
create index courier_available on courier (tenant_id, id) where available;
comment on table courier is 'Who can carry an order. available: reserved by no saga.';

create table saga (
    id          uuid        primary key,
    name        text        collate "C" not null,
    order_id    uuid        not null,
    tenant_id   text        collate "C" not null,
    ordinal     integer     not null check (ordinal >= 1),
    state       text        collate "C" not null
                            constraint saga_state check (state in ('started', 'compensating', 'succeeded', 'failed')),
    step        text        collate "C" not null,
    context     jsonb       not null default '{}',
    worker      uuid,
    next_at     timestamptz not null default now(),
    attempts    integer     not null default 0 check (attempts >= 0),
    step_since  timestamptz not null default now(),
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    constraint saga_ordinal unique (order_id, name, ordinal)
);
-- One at a time, and none after one that succeeded.
create unique index saga_one_per_order on saga (order_id, name) where state <> 'failed';
create index saga_due on saga (next_at) where state in ('started', 'compensating');
create index saga_state_created on saga (state, created_at desc);
comment on table saga is 'One row per saga. Every write of a worker names its token (worker): a stale one writes nothing.';
comment on column saga.ordinal is 'Sagas of this order, counted from 1: a second one has effects of its own.';
comment on column saga.step is 'The step that is next; when compensating, the one that is being undone.';
comment on column saga.context is 'What later steps need: courier, vehicle, fee; and why it failed.';
comment on column saga.worker is 'Token of the claim; null between steps.';
comment on column saga.next_at is 'When a worker looks again; while one works, when its claim is over.';
comment on column saga.attempts is 'Attempts of the present step.';

create table saga_step (
    id       bigint generated always as identity primary key,
    saga_id  uuid        not null references saga on delete cascade,
    step     text        collate "C" not null,
    kind     text        collate "C" not null constraint saga_step_kind check (kind in ('action', 'compensation')),
    state    text        collate "C" not null
                         constraint saga_step_state check (state in ('started', 'uncertain', 'done', 'failed')),
    chave    text        collate "C",
    note     text,
    at       timestamptz not null default now(),
    unique (saga_id, step, kind, state)
);
comment on table saga_step is 'What happened, in order: each state of a step once.';
comment on column saga_step.chave is 'The effect of the ledger that the step is, if it is one.';

create table courier_reservation (
    courier_id  text        collate "C" primary key references courier,
    order_id    uuid        not null unique,
    saga_id     uuid        not null unique references saga,
    reserved_at timestamptz not null default now()
);
comment on table courier_reservation is 'One order per courier and one courier per order: of two sagas the second finds none.';
