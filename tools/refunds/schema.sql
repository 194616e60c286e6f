-- Money given back. The sum per order never exceeds what was paid; the tool checks it inside its transaction.
CREATE TABLE refunds (
    refund_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    reason TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('approved', 'paid', 'rejected')),
    created_on TEXT NOT NULL,
    paid_on TEXT
);
CREATE INDEX refunds_by_order ON refunds (order_id);
