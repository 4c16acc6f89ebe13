//go:build race

package keeper

// Under the race detector a schedule takes many times as long.
const defaultSchedules = 25
