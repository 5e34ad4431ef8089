UPDATE customer SET full_name = name || ' ' || surname;
CREATE INDEX customer_by_full_name ON customer (full_name);
