// Package conformance holds the tests that net/http, chi, Gin, Echo v4 and Echo v5
// treat the same requests in the same way: one table of scenarios, run by all, and
// one of exploits, sent to real servers of all. It has no code that ships.
package conformance
