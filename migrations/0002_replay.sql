-- Replays: their plan, their progress, what they changed; and the archive they may read from.

create table reprocessamento (
    execucao_id    text collate "C" not null,
    simular        boolean     not null,
    situacao       text collate "C" not null
                   check (situacao in ('planejado', 'executando', 'pausado', 'concluido', 'cancelado', 'falhou')),
    topico         text        not null,
    de             timestamptz not null,
    ate            timestamptz,
    fonte          text collate "C" not null check (fonte in ('kafka', 'arquivo')),
    politicas      jsonb       not null,
    pedidos        text[],
    aceitar_lacuna boolean     not null default false,
    aceitar_compactado boolean not null default false,
    pedido_por     text,
    motivo_falha   text,
    criado_em      timestamptz not null default now(),
    iniciado_em    timestamptz,
    terminado_em   timestamptz,
    primary key (execucao_id, simular)
);
comment on table reprocessamento is 'Replays and dry runs: what was asked, by whom, and how far it is.';
comment on column reprocessamento.politicas is 'Effective policy by effect type: {"notificar-vendedor": "aplicar"}.';
comment on column reprocessamento.pedidos is 'Selected orders; null: all.';

create table reprocessamento_checkpoint (
    execucao_id   text collate "C" not null,
    simular       boolean     not null,
    particao      integer     not null,
    inicio        bigint      not null,
    fim           bigint      not null,
    posicao       bigint      not null,
    contagens     jsonb       not null default '{}',
    atualizado_em timestamptz not null default now(),
    primary key (execucao_id, simular, particao),
    foreign key (execucao_id, simular) references reprocessamento on delete cascade
);
comment on table reprocessamento_checkpoint is 'Progress of a replay per partition: inicio inclusive, fim exclusive, posicao the first offset that is not settled; written after the ledger rows it covers.';
comment on column reprocessamento_checkpoint.contagens is 'Counts below posicao: eventos, estado, efeitos.';

create table reprocessamento_diff (
    execucao_id text collate "C" not null,
    simular     boolean not null,
    pedido_id   text collate "C" not null,
    antes       jsonb,
    depois      jsonb,
    primary key (execucao_id, simular, pedido_id),
    foreign key (execucao_id, simular) references reprocessamento on delete cascade
);
comment on table reprocessamento_diff is 'Orders whose commission a replay changed, or a dry run would change: {"valorCentavos", "versaoEvento"} before the first and after the last event in range.';

create table reprocessamento_efeito (
    execucao_id       text collate "C" not null,
    simular           boolean not null,
    chave             text collate "C" not null,
    pedido_id         text collate "C" not null,
    tipo_efeito       text collate "C" not null,
    desfecho          text collate "C" not null,
    requisicao_antes  jsonb,
    requisicao_depois jsonb,
    primary key (execucao_id, simular, chave),
    foreign key (execucao_id, simular) references reprocessamento on delete cascade
);
comment on table reprocessamento_efeito is 'Effects in a replay''s range that were not simply recorded already.';

create table evento_arquivado (
    posicao      bigint generated always as identity primary key,
    topico       text collate "C" not null,
    particao     integer     not null,
    "offset"     bigint      not null,
    timestamp_ms bigint,
    id           text collate "C",
    tipo         text collate "C",
    pedido_id    text collate "C",
    versao       bigint,
    payload      jsonb,
    ocorrido_em  timestamptz,
    chave        bytea,
    valor        bytea,
    cabecalhos   jsonb       not null default '[]',
    arquivado_em timestamptz not null default now(),
    unique (topico, particao, "offset")
);
create index evento_arquivado_ocorrido_em on evento_arquivado (ocorrido_em);
comment on table evento_arquivado is 'Events beyond the topic''s retention, raw bytes included; filled by `reprise archive`.';
comment on column evento_arquivado.valor is 'The record''s value byte for byte; payload is for queries only (jsonb rewrites numbers).';

create table livro_horizonte (
    unico     boolean primary key default true check (unico),
    purgado_ate timestamptz not null,
    em        timestamptz not null default now()
);
comment on table livro_horizonte is 'Ledger rows of events before purgado_ate were purged: a replay behind it is refused unless effects are suppressed.';
