-- The ledger side: commissions, the effect ledger, evidence, decisions, dead letters.
-- Additive migrations only; a migration that was applied is never edited.

create table comissao (
    pedido_id      text collate "C" primary key,
    valor_centavos bigint      not null,
    versao_evento  bigint      not null check (versao_evento >= 1),
    evento_id      text collate "C" not null,
    resumo_evento  bytea       not null,
    execucao_id    text collate "C" not null default 'ao-vivo',
    atualizado_em  timestamptz not null default now()
) with (fillfactor = 80);
comment on table comissao is 'The commission of an order: one row, guarded by the version of the event that wrote it.';
comment on column comissao.valor_centavos is 'Commission in cents, half away from zero.';
comment on column comissao.versao_evento is 'Version of the order at the event that wrote the row; an older one never overwrites it.';
comment on column comissao.resumo_evento is 'SHA-256 over the decoded business fields of that event.';
comment on column comissao.execucao_id is 'The run that wrote the row last: ao-vivo, or the id of a replay or redrive.';

create table efeito_aplicado (
    chave                 text collate "C" primary key,
    evento_id             text collate "C" not null,
    tipo_efeito           text collate "C" not null,
    pedido_id             text collate "C" not null,
    versao_evento         bigint      not null,
    estado                text collate "C" not null
                          constraint efeito_estado check (estado in ('reservado', 'concluido', 'incerto')),
    execucao_id           text collate "C" not null,
    requisicao            jsonb       not null,
    resumo_requisicao     bytea       not null,
    resumo_evento         bytea       not null,
    resultado             jsonb,
    ficha                 uuid,
    dono                  bigint,
    reserva_ate           timestamptz,
    tentar_em             timestamptz,
    talvez_enviado        boolean     not null default false,
    tentativas            integer     not null default 0 check (tentativas >= 0),
    primeira_tentativa_em timestamptz not null default now(),
    criado_em             timestamptz not null default now(),
    atualizado_em         timestamptz not null default now(),
    constraint efeito_uma_vez_por_versao unique (pedido_id, versao_evento, tipo_efeito)
) with (fillfactor = 50);
comment on table efeito_aplicado is 'The effect ledger: one row per external call, reserved before it is made. No index names estado, ficha or reserva_ate: settling stays a heap-only update.';
comment on column efeito_aplicado.chave is '<evento_id>:<tipo_efeito>, the same live and in every replay; sent as Idempotency-Key.';
comment on column efeito_aplicado.estado is 'reservado: in flight (ficha set) or waiting (ficha null); concluido: known done; incerto: nobody knows.';
comment on column efeito_aplicado.requisicao is 'The request that was sent or is about to be.';
comment on column efeito_aplicado.resumo_requisicao is 'SHA-256 of the request body; compared to find divergent effects.';
comment on column efeito_aplicado.resumo_evento is 'SHA-256 over the decoded business fields of the event; compared to find content conflicts.';
comment on column efeito_aplicado.ficha is 'Token of the reservation: every later write about it must name it.';
comment on column efeito_aplicado.dono is 'Session advisory lock of the process that reserved; whoever can take it knows that process is gone.';
comment on column efeito_aplicado.reserva_ate is 'End of the lease, by database time.';
comment on column efeito_aplicado.tentar_em is 'When a waiting effect is due.';
comment on column efeito_aplicado.talvez_enviado is 'An earlier attempt may have reached the provider. Never forgotten.';
comment on column efeito_aplicado.tentativas is 'Attempts that were begun and not proven undone.';
comment on column efeito_aplicado.primeira_tentativa_em is 'When the first attempt that may have reached the provider began: janela_idempotencia counts from it.';

create table onda_aberta (
    ficha       uuid primary key,
    dono        bigint      not null,
    execucao_id text collate "C" not null,
    aberta_em   timestamptz not null default now(),
    reserva_ate timestamptz not null,
    chaves      text[]      not null
);
comment on table onda_aberta is 'Waves of reservations with an unsettled member: what the sweeper and the gauges read instead of scanning the ledger.';

create table efeito_pendente (
    chave       text collate "C" primary key references efeito_aplicado on delete cascade,
    tipo_efeito text collate "C" not null,
    situacao    text collate "C" not null check (situacao in ('espera', 'incerto')),
    tentar_em   timestamptz,
    desde       timestamptz not null default now()
);
comment on table efeito_pendente is 'Effects that wait for a retry or for a person; a small table beside the ledger, kept by the same transactions.';

create table tentativa_efeito (
    id          bigint generated always as identity primary key,
    chave       text collate "C" not null,
    ficha       uuid,
    execucao_id text collate "C" not null,
    instancia   text        not null,
    dono        bigint,
    resposta    text collate "C" not null,
    alcance     text collate "C" not null,
    status      integer,
    detalhe     text        not null,
    requisicao  jsonb,
    duracao_ms  bigint,
    em          timestamptz not null default now()
);
create index tentativa_efeito_chave on tentativa_efeito (chave);
comment on table tentativa_efeito is 'Evidence, append-only: one line per attempt that was not a plain success.';
comment on column tentativa_efeito.resposta is 'What the answer proved: desconhecido, nao-enviado, credencial, agora-nao, em-andamento, recusado, feito-tardio, abandonado.';
comment on column tentativa_efeito.alcance is 'How far the transport got.';

create table revisao_efeito (
    chave   text collate "C" not null,
    rodada  integer     not null default 1,
    decisao text collate "C" not null check (decisao in ('concluido', 'nao-enviado', 'descartado')),
    por     text        not null,
    motivo  text        not null,
    em      timestamptz not null default now(),
    primary key (chave, rodada)
);
comment on table revisao_efeito is 'Decisions of people about uncertain effects: one for each time an effect became uncertain, final.';

create table carta_morta (
    id                bigint generated always as identity primary key,
    topico            text collate "C" not null,
    particao          integer     not null,
    "offset"          bigint      not null,
    motivo            text collate "C" not null,
    mensagem          text        not null,
    pedido_id         text collate "C",
    efeito            text collate "C",
    execucao_id       text collate "C" not null,
    tentativas        integer     not null default 0,
    timestamp_ms      bigint,
    chave             bytea,
    valor             bytea,
    cabecalhos        jsonb       not null default '[]',
    tamanho           bigint      not null default 0,
    resumo            bytea       not null,
    rodadas           integer     not null default 0,
    situacao          text collate "C" not null default 'aberta' check (situacao in ('aberta', 'resolvida')),
    primeira_falha_em timestamptz not null,
    criado_em         timestamptz not null default now(),
    atualizado_em     timestamptz not null default now()
);
create unique index carta_morta_registro on carta_morta
    (topico, particao, "offset", motivo, coalesce(efeito, ''), coalesce(timestamp_ms, -1), resumo);
create index carta_morta_pedido on carta_morta (pedido_id);
create index carta_morta_abertas on carta_morta (criado_em) where situacao = 'aberta';
comment on table carta_morta is 'Index of dead letters, with the record (bounded), so that a redrive outlives the topic''s retention.';
comment on column carta_morta.cabecalhos is 'Headers in their order: [[name, base64 or null], ...].';
comment on column carta_morta.resumo is 'SHA-256 of the whole value, also where valor was cut.';
comment on column carta_morta.rodadas is 'Redrives that brought it back.';
