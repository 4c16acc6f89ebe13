// Package limits keeps limits in a document, which can change while the servers run: see package limits of the
// names, docs/limits.md, and docs/design/limits.md.
package limits
