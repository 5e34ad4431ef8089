-- These statements work on both PostgreSQL and SQLite.
CREATE TABLE customer (id BIGINT PRIMARY KEY, name TEXT NOT NULL, surname TEXT NOT NULL);
INSERT INTO customer VALUES (1, 'Ada', 'Lovelace'), (2, 'Alan', 'Turing');
