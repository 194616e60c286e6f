-- Help articles. Title, topic and summary are written by the support team; bodies may quote customers and suppliers.
CREATE TABLE articles (
    id INTEGER PRIMARY KEY,
    article_id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    title TEXT NOT NULL,
    summary TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE VIRTUAL TABLE article_index USING fts5 (
    title, summary, body, content = 'articles', content_rowid = 'id', tokenize = 'porter unicode61'
);
