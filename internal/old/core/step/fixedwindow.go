package step

// fixedWindow counts in windows that follow each other: those of the clock, aligned to
// 1970-01-01 UTC, or with FromFirst those that begin with the first unit after the end of the
// one before. Its state is [start, count] of the newest window.
type fixedWindow struct{ numbers Numbers }

func (w *fixedWindow) Numbers() Numbers   { return w.numbers }
func (w *fixedWindow) CountsDenied() bool { return w.numbers.CountDenied }
func (w *fixedWindow) Max() int64         { return w.numbers.Limit }
func (w *fixedWindow) Words() int         { return 2 }
func (w *fixedWindow) MaxWords() int      { return 2 }

// begin returns the start of the window that an instant is in, if none is open.
func (w *fixedWindow) begin(at int64) int64 {
	if w.numbers.FromFirst {
		return at
	}
	return align(at, w.numbers.Period)
}

// at returns the window that now belongs to, and its count.
func (w *fixedWindow) at(s []int64, now int64) (start, count int64) {
	if len(s) < 2 || w.FreshAt(s) <= now {
		return w.begin(now), 0
	}
	return s[0], s[1]
}

func (w *fixedWindow) Admits(s []int64, now, n int64) bool {
	_, count := w.at(s, now)
	return n <= w.numbers.Limit-count
}

func (w *fixedWindow) Charge(s []int64, now, n int64) []int64 {
	start, count := w.at(s, now)
	s[0], s[1] = start, count+n
	return s
}

// Refuse counts no further than the limit: more would change no decision in this window.
func (w *fixedWindow) Refuse(s []int64, now, n int64) []int64 {
	start, count := w.at(s, now)
	s[0], s[1] = start, saturate(count, n, w.numbers.Limit)
	return s
}

func (w *fixedWindow) Report(s []int64, now, n, _ int64) []int64 {
	start, count := w.at(s, now)
	s[0], s[1] = start, saturate(count, n, MaxInt)
	return s
}

func (w *fixedWindow) Read(s []int64, now, n int64) Reading {
	start, count := w.at(s, now)
	return w.read(start, count, now, n)
}

// read is Read of a window that begins at start.
func (w *fixedWindow) read(start, count, now, n int64) Reading {
	var r Reading
	r.Remaining = max(w.numbers.Limit-count, 0)
	end := start + w.numbers.Period - now
	if count > 0 {
		r.NextAfter, r.ResetAfter = end, end
	}
	switch {
	case n > w.numbers.Limit:
		r.RetryAfter = Never
	case n > w.numbers.Limit-count:
		r.RetryAfter = end
	}
	return r
}

func (w *fixedWindow) GiveBack(s []int64, _, at, n int64) {
	if s[0] <= at && at < s[0]+w.numbers.Period {
		s[1] = max(s[1]-n, 0)
	}
}

// Adopt puts the count where its events may have happened at the latest.
func (w *fixedWindow) Adopt(s []int64, now int64, from Numbers) []int64 {
	last := min(s[0]+from.Period-1, max(now, s[0]))
	return []int64{w.begin(last), s[1]}
}

func (w *fixedWindow) Count(s []int64, now, n, _ int64) []int64 {
	return w.Report(s, now, n, 0)
}

func (w *fixedWindow) Redate(s []int64, now, _ int64) []int64 {
	if s[0]-now <= w.Window() {
		return nil
	}
	return []int64{w.begin(now), max(s[1], w.numbers.Limit)}
}

func (w *fixedWindow) Window() int64 { return w.numbers.Period }
func (w *fixedWindow) Reach() int64  { return w.numbers.Period }

func (w *fixedWindow) FreshAt(s []int64) int64 {
	if s[1] == 0 {
		return s[0]
	}
	return s[0] + w.numbers.Period
}

// Constants returns the period, and the limit. Values begin with the period: a bit beyond
// those of all periods tells with what their windows begin.
func (w *fixedWindow) Constants() []int64 {
	period := w.numbers.Period
	if w.numbers.FromFirst {
		period += MaxSpan
	}
	return []int64{period, w.numbers.Limit}
}
