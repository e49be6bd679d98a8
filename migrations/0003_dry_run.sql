-- Drafts of dry runs: what the earlier events of a range would have written, until the diff is complete and
-- replaces the one before it in one transaction. Unlogged: a draft costs no WAL, and a lost one is made again.

create unlogged table reprocessamento_rascunho (
    ficha       uuid primary key,
    execucao_id text collate "C" not null,
    iniciado_em timestamptz not null default now()
);
comment on table reprocessamento_rascunho is 'Dry runs being made; whoever finds its ficha gone was replaced by another process, or lost its draft to a crash of the server.';

create unlogged table reprocessamento_rascunho_pedido (
    ficha          uuid not null,
    pedido_id      text collate "C" not null,
    antes          jsonb,
    valor_centavos bigint not null,
    versao_evento  bigint not null,
    evento_id      text collate "C" not null,
    resumo_evento  bytea  not null,
    primary key (ficha, pedido_id)
) with (fillfactor = 80);
comment on table reprocessamento_rascunho_pedido is 'Commissions as they would be by now, with what stood there before the first event in range.';

create unlogged table reprocessamento_rascunho_efeito (
    ficha             uuid not null,
    chave             text collate "C" not null,
    evento_id         text collate "C" not null,
    tipo_efeito       text collate "C" not null,
    pedido_id         text collate "C" not null,
    versao_evento     bigint not null,
    desfecho          text collate "C" not null,
    resumo_requisicao bytea  not null,
    resumo_evento     bytea  not null,
    requisicao_antes  jsonb,
    requisicao_depois jsonb  not null,
    primary key (ficha, chave)
);
create index reprocessamento_rascunho_efeito_versao on reprocessamento_rascunho_efeito
    (ficha, pedido_id, versao_evento) where desfecho = 'seria-aplicado';
comment on table reprocessamento_rascunho_efeito is 'Effects that are not simply recorded already; those with seria-aplicado stand for the ledger rows that a real run would have by now.';
