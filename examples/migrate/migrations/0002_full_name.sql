ALTER TABLE customer ADD COLUMN full_name TEXT;
