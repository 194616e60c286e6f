-- Papers that belong to an order, as text, and the mail server's outbox.
CREATE TABLE documents (
    document_id TEXT PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders,
    kind TEXT NOT NULL CHECK (kind IN ('invoice', 'delivery_note', 'return_label')),
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    created_on TEXT NOT NULL
);
CREATE INDEX documents_by_order ON documents (order_id, kind);
CREATE TABLE outbox (
    mail_id TEXT PRIMARY KEY,
    document_id TEXT NOT NULL REFERENCES documents,
    email TEXT NOT NULL,
    sent_on TEXT NOT NULL
);
