-- What people decided about parked messages: published after all, or left out for good.

create table outbox_decision (
    id            bigint generated always as identity primary key,
    message_id    uuid        not null,
    decision      text        collate "C" not null
                              constraint outbox_decision_kind check (decision in ('requeued', 'discarded')),
    decided_by    text        not null,
    reason        text        not null,
    destination   text        collate "C" not null,
    aggregate_id  text        collate "C" not null,
    event_type    text        collate "C" not null,
    last_error    text,
    payload       jsonb,
    decided_at    timestamptz not null default now()
);
create index outbox_decision_message on outbox_decision (message_id);

comment on table outbox_decision is 'Decisions about parked messages of the outbox, append-only.';
comment on column outbox_decision.payload is 'Of a discarded message, whose row is gone from the outbox; null otherwise.';
