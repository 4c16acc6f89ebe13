// Package core decides whether an event may happen. It is behind package core of the names, which promises what
// users get.
package core
