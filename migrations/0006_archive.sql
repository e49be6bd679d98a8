-- The archive tells a topic that was made anew apart by the record's timestamp, is read by partition in the order of
-- posicao, and finds records whose bytes say no time by their log time.

alter table evento_arquivado drop constraint evento_arquivado_topico_particao_offset_key;
alter table evento_arquivado add constraint evento_arquivado_registro
    unique nulls not distinct (topico, particao, "offset", timestamp_ms);
create index evento_arquivado_particao on evento_arquivado (topico, particao, posicao);
create index evento_arquivado_sem_hora on evento_arquivado (timestamp_ms) where ocorrido_em is null;
comment on column evento_arquivado.posicao is 'Order of arrival in the archive; within a partition the order of the log. Positions of replays with fonte = arquivo are these.';
comment on column evento_arquivado.ocorrido_em is 'What the event says of itself; null where its bytes say nothing, then timestamp_ms counts.';
