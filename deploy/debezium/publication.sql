-- What Debezium may see of the outbox: inserts only (the relay's marks and the dropped days are nobody's business),
-- under the name of the whole table, whatever the partition. Run as the owner of the table, once.
create publication reprise_outbox for table outbox with (publish = 'insert', publish_via_partition_root = true);
