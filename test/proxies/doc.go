// Package proxies holds attacks on the key functions for addresses, through real proxies. These are
// net/http's own, and nginx and HAProxy as the documentation says to configure them. It has no code
// that ships.
//
// The proxies listen on loopback addresses of their own, and live no longer than their test.
// Without nginx or haproxy the tests are skipped, unless HEADGATE_REQUIRE=1 is set:
// then they fail. They run on Linux only, where all of 127.0.0.0/8 is loopback.
package proxies
