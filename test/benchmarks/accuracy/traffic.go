package main

import (
	"math"
	"math/rand/v2"
)

// A traffic is a population of independent sources. While a source is active, it
// sends at its own rate, and the rates follow Zipf's law: that of the source of
// rank i among n is proportional to (i/n)^-exponent.
type traffic struct {
	name     string
	over     float64 // share of the sources whose rate is above the limit
	exponent float64
}

var traffics = []traffic{
	{"abusers send half", 1. / 100, 1},
	{"1 in 7 over", 1. / 7, 1},
	{"almost nobody near", 1. / 1_000_000, 0.5}, // the busiest of 270,000 at three quarters of the limit
}

// Requests arrive in bursts within sessions within silence, because people and
// programs do, and because evenly spread requests would flatter every estimate.
const (
	session = 4 * period  // mean time that a source is active
	pause   = 36 * period // mean time that it then is silent
	active  = float64(session) / (session + pause)

	burst   = 8       // mean requests in a burst
	spacing = 100_000 // mean microseconds between them, or less at a high rate

	// maxRate bounds the head of Zipf's law. What is refused a hundred times a
	// second decides nothing but how large the share of right refusals is.
	maxRate = 50 * limit
)

// rate returns the mean number of requests per period of source i while active.
func (t traffic) rate(i, sources int) float64 {
	rank := (float64(i) + 0.5) / float64(sources)
	return min(limit*math.Pow(t.over/rank, t.exponent), maxRate)
}

// expected returns the mean number of requests per period of all sources, and the
// part of them sent by sources over the limit.
func (t traffic) expected(sources int) (perPeriod, byOver float64) {
	for i := range sources {
		r := t.rate(i, sources) * active
		perPeriod += r
		if r > limit*active {
			byOver += r
		}
	}
	return perPeriod, byOver / perPeriod
}

// arrivals is the request process of one source.
type arrivals struct {
	rng         *rand.Rand
	now, end    float64 // the end of the session
	short, long float64 // mean gaps inside a burst and between bursts
}

// newArrivals seeds each source by itself, so that the outcome does not depend
// on how the sources are shared among processors.
func newArrivals(rate float64, seed, source uint64) *arrivals {
	gap := period / rate
	short := min(spacing, gap/2)
	a := &arrivals{
		rng:   rand.New(rand.NewPCG(seed, source)),
		short: short,
		long:  burst*gap - (burst-1)*short,
	}
	a.now = a.rng.Float64() * period // the windows of the clock must not begin with the study
	a.end = a.now
	if a.rng.Float64() < active {
		a.end += a.exp(session)
	}
	return a
}

func (a *arrivals) exp(mean float64) float64 { return a.rng.ExpFloat64() * mean }

// next returns the instant of the next request.
func (a *arrivals) next() int64 {
	if a.rng.Float64()*burst < 1 {
		a.now += a.exp(a.long)
	} else {
		a.now += a.exp(a.short)
	}
	for a.now > a.end {
		a.now = a.end + a.exp(pause)
		a.end = a.now + a.exp(session)
		a.now += a.exp(a.long)
	}
	return int64(a.now)
}
