package main

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"
)

// maxHeld is how many requests of a log are held, so that they can be put in order.
const maxHeld = 1 << 20

// An ordered log returns the requests of a log in the order of their times, as far as no request
// is behind more than maxHeld others that are later.
type orderedLog struct {
	place int // among the logs
	read  func() (request, bool, error)
	most  int

	held  requests
	ended bool
	lines int       // the number of the last request
	last  time.Time // of what was read last

	early int // requests that were earlier than the one before
}

// requests are a heap: the earliest comes first, and of equal times the one that was read first.
type requests []numbered

type numbered struct {
	request

	number int
}

func (rs *requests) Len() int           { return len(*rs) }
func (rs *requests) Less(i, j int) bool { return (*rs)[i].compare((*rs)[j]) < 0 }
func (rs *requests) Swap(i, j int)      { (*rs)[i], (*rs)[j] = (*rs)[j], (*rs)[i] }
func (rs *requests) Push(x any)         { *rs = append(*rs, x.(numbered)) }

func (rs *requests) Pop() any {
	last := len(*rs) - 1
	x := (*rs)[last]
	*rs = (*rs)[:last]
	return x
}

func (n numbered) compare(m numbered) int {
	return cmp.Or(n.at.Compare(m.at), cmp.Compare(n.number, m.number))
}

// fill reads until the first of the held requests is the next one.
func (l *orderedLog) fill(ctx context.Context) error {
	for !l.ended && len(l.held) < l.most {
		if err := ctx.Err(); err != nil {
			return err
		}
		q, ok, err := l.read()
		if err != nil {
			return err
		}
		if !ok {
			l.ended = true
			break
		}
		l.lines++
		if q.at.Before(l.last) {
			l.early++
		}
		l.last = q.at
		heap.Push(&l.held, numbered{q, l.lines})
	}
	return nil
}

// merge calls f with the requests of all logs in order.
func merge(ctx context.Context, logs []*orderedLog, f func(request)) error {
	for {
		for _, l := range logs {
			if err := l.fill(ctx); err != nil {
				return err
			}
		}
		logs = slices.DeleteFunc(logs, func(l *orderedLog) bool { return len(l.held) == 0 })
		if len(logs) == 0 {
			return nil
		}
		next := slices.MinFunc(logs, func(a, b *orderedLog) int {
			return cmp.Or(a.held[0].at.Compare(b.held[0].at), cmp.Compare(a.place, b.place))
		})
		f(heap.Pop(&next.held).(numbered).request)
	}
}
