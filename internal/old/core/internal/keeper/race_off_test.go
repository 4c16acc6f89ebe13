//go:build !race

package keeper

const defaultSchedules = 150
