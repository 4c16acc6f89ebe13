// Package conformance holds the tests that net/http, chi, Gin, Echo v4 and Echo v5 treat the same
// requests in the same way. One table has scenarios, run by all. Another has exploits, sent to real
// servers of all. It has no code that ships.
package conformance
