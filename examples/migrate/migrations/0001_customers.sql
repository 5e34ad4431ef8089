-- One set for both databases. A team with one needs no such care.
CREATE TABLE customer (id BIGINT PRIMARY KEY, name TEXT NOT NULL, surname TEXT NOT NULL);
INSERT INTO customer VALUES (1, 'Ada', 'Lovelace'), (2, 'Alan', 'Turing');
