// Package canary holds the test that no key and no secret is in what the packages print, return or
// answer. It also finds them in the output of packages of other modules. It has no code that ships.
package canary
