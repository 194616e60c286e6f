-- Customers, what they ordered, where it is, and what happened to it. Money in integer cents, dates as ISO text.
CREATE TABLE customers (
    customer_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL,
    since TEXT NOT NULL
);
CREATE TABLE orders (
    order_id TEXT PRIMARY KEY,
    customer_id TEXT NOT NULL REFERENCES customers,
    placed_on TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('processing', 'packed', 'shipped', 'delivered', 'cancelled')),
    total_cents INTEGER NOT NULL CHECK (total_cents >= 0),
    paid_cents INTEGER NOT NULL CHECK (paid_cents >= 0),
    shipping_cents INTEGER NOT NULL,
    payment_method TEXT NOT NULL,
    address TEXT NOT NULL
);
CREATE INDEX orders_by_customer ON orders (customer_id, placed_on);
CREATE TABLE order_items (
    order_id TEXT NOT NULL REFERENCES orders,
    line INTEGER NOT NULL,
    sku TEXT NOT NULL REFERENCES products,
    name TEXT NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    price_cents INTEGER NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE TABLE shipments (
    shipment_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL UNIQUE REFERENCES orders,
    carrier TEXT NOT NULL,
    tracking TEXT NOT NULL,
    shipped_on TEXT NOT NULL,
    expected_on TEXT NOT NULL,
    delivered_on TEXT
);
CREATE TABLE shipment_events (
    shipment_id TEXT NOT NULL REFERENCES shipments,
    nth INTEGER NOT NULL,
    at TEXT NOT NULL,
    place TEXT NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (shipment_id, nth)
);
-- Append-only history: a change made twice is two rows, even when the order looks the same afterwards.
CREATE TABLE order_events (
    id INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at TEXT NOT NULL
);
