package main

import "golang.org/x/sys/unix"

// pin keeps the thread on one processor. If that is not allowed, it may move.
func pin(processor int) {
	var set unix.CPUSet
	set.Set(processor)
	_ = unix.SchedSetaffinity(0, &set)
}
