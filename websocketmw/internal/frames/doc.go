// Package frames has what RFC 6455 says about bytes: the frames in a stream, however it is split,
// what they count, what is forbidden in them, a Close frame, and the end of a 101.
//
// It is pure: no clock, no lock, no connection. Its types belong to one goroutine each.
package frames
