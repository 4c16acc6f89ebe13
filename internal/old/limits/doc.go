// Package limits has the nodes of a document, as headgated reads its own.
package limits
