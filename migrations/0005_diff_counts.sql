-- A dry run that is repeated counts anew while its earlier diff still stands: the counts of that diff are kept with it.

alter table reprocessamento add column efeitos_do_diff jsonb;
comment on column reprocessamento.efeitos_do_diff is 'Dry runs: counts by effect type and outcome, one entry per partition, of the diff that stands; written together with it.';
