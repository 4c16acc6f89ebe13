package step

// minInterval keeps the instant of the last admitted call. It counts calls, not
// units. Its state is [last, newest]: last is 0 after the call was given back, and newest
// is what it was before.
type minInterval struct{ numbers Numbers }

func (m *minInterval) Numbers() Numbers { return m.numbers }
func (*minInterval) CountsDenied() bool { return false }
func (m *minInterval) Max() int64       { return MaxInt }
func (m *minInterval) Words() int       { return 2 }
func (m *minInterval) MaxWords() int    { return 2 }

// wait returns the time until the next call is admitted.
func (m *minInterval) wait(s []int64, now int64) int64 {
	if len(s) == 0 || s[0] == 0 {
		return 0
	}
	return upTo(s[0]+m.numbers.Period, now)
}

func (m *minInterval) Admits(s []int64, now, _ int64) bool { return m.wait(s, now) == 0 }

func (m *minInterval) Charge(s []int64, now, _ int64) []int64 {
	s[1] = max(now, s[1])
	s[0] = s[1]
	return s
}

func (m *minInterval) Refuse(s []int64, _, _ int64) []int64 { return s }

// Report notes a call. If another was at this instant, that may be given back, and the one reported
// must stay: so it is a microsecond later.
func (m *minInterval) Report(s []int64, now, n, _ int64) []int64 {
	if s[0] != 0 && s[0] >= now {
		now = s[0] + 1
	}
	return m.Charge(s, now, n)
}

func (m *minInterval) Read(s []int64, now, n int64) Reading {
	wait := m.wait(s, now)
	if wait == 0 {
		return Reading{Remaining: 1}
	}
	r := Reading{NextAfter: wait, ResetAfter: wait}
	if n > 0 {
		r.RetryAfter = wait
	}
	return r
}

// GiveBack removes the call if it was the last. The one before it need not be restored:
// it was long enough ago for this one to be admitted.
func (m *minInterval) GiveBack(s []int64, _, at, _ int64) {
	if s[0] == at {
		s[0] = 0
	}
}

func (m *minInterval) Adopt(s []int64, _ int64, _ Numbers) []int64 { return []int64{s[0], s[1]} }

func (m *minInterval) Count(s []int64, now, n, _ int64) []int64 { return m.Charge(s, now, n) }

func (m *minInterval) Redate(s []int64, now, _ int64) []int64 {
	if s[1]-now <= m.Window() {
		return nil
	}
	return []int64{now, now}
}

func (m *minInterval) Window() int64 { return m.numbers.Period }
func (m *minInterval) Reach() int64  { return m.numbers.Period }

func (m *minInterval) FreshAt(s []int64) int64 {
	if s[0] == 0 {
		return s[1]
	}
	return s[0] + m.numbers.Period
}

func (m *minInterval) Constants() []int64 {
	return []int64{m.numbers.Period}
}
