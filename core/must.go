package core

// Must returns v, or panics with err if that is not nil. It is for what is made once, when a
// program starts, and cannot fail unless the program is wrong: all that New, NewSlots, the
// functions of package keyfuncs and the guards report is in their arguments.
//
//	limiter := core.Must(core.New(store, "api", core.TokenBucket(core.PerSecond(10), 100)))
//	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
//
// Numbers, networks and addresses of a configuration file are not the program's: report them.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
