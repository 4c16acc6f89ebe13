// Package canary holds the test that no key and no secret is in what the packages print, return or
// answer, and finds them in what packages of other modules do. It has no code that ships.
package canary
