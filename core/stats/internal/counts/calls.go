package counts

import (
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/store"
)

// buckets are the upper bounds of the durations of calls, but for the last, which has none.
func buckets() []time.Duration {
	return []time.Duration{
		100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
		10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, time.Second,
	}
}

const bucketCount = 13

// calls are the calls of stores to their servers.
type calls struct {
	answered, failed histogram
	questions        atomic.Uint64
}

type histogram struct {
	counts [bucketCount]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

func (c *calls) add(e store.CallEvent) {
	h := &c.answered
	if e.Err != nil {
		h = &c.failed
	}
	c.questions.Add(uint64(max(e.Questions, 0)))
	h.add(max(e.Took, 0))
}

func (h *histogram) add(d time.Duration) {
	i := 0
	for _, most := range buckets() {
		if d <= most {
			break
		}
		i++
	}
	h.sum.Add(uint64(d))
	h.counts[i].Add(1)
}

func (h *histogram) read() Durations {
	d := Durations{Buckets: make([]Bucket, 0, bucketCount-1)}
	bounds := buckets()
	for i := range h.counts {
		d.Count += h.counts[i].Load()
		if i < len(bounds) {
			d.Buckets = append(d.Buckets, Bucket{bounds[i].Seconds(), d.Count})
		}
	}
	d.Sum = time.Duration(h.sum.Load()).Seconds()
	return d
}
