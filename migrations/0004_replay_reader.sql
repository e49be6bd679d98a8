-- Who reads a partition of a replay now: a checkpoint of an earlier reader that comes late is refused, so that its
-- records are counted once, by the reader that took over.

alter table reprocessamento_checkpoint add column leitor uuid;
comment on column reprocessamento_checkpoint.leitor is 'The claim of the process that reads this partition; only it may move posicao.';
