-- Runs of `reprise retention`: who took what away, up to when. The ledger's own horizon is livro_horizonte.

create table retencao_execucao (
    id           bigint generated always as identity primary key,
    por          text,
    livro_ate    timestamptz,
    evidencia_ate timestamptz,
    arquivo_ate  timestamptz,
    apagadas     jsonb       not null default '{}',
    iniciada_em  timestamptz not null default now(),
    terminada_em timestamptz
);
comment on table retencao_execucao is 'Runs of `reprise retention`: horizons (exclusive; null: not touched) and rows taken away by table.';
comment on column retencao_execucao.terminada_em is 'Null: it runs, or it was interrupted; run it again, it goes on.';
