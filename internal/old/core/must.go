package core

// Must returns v, or panics with err if that is not nil. It is for values that a program makes
// once, when it starts. New, NewSlots, the functions of package keyfuncs and the guards report only
// faults in their arguments. So Must panics only if the program is wrong.
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
