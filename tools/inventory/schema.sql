-- The catalogue, what is on the shelf, and what is held for a customer.
CREATE TABLE products (
    sku TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    category TEXT NOT NULL,
    price_cents INTEGER NOT NULL,
    warranty_months INTEGER NOT NULL
);
CREATE TABLE stock (
    sku TEXT PRIMARY KEY REFERENCES products,
    available INTEGER NOT NULL CHECK (available >= 0),
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    restock_on TEXT
);
CREATE TABLE reservations (
    reservation_id TEXT PRIMARY KEY,
    sku TEXT NOT NULL REFERENCES products,
    customer_id TEXT NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    held_until TEXT NOT NULL
);
