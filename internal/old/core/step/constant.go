package step

// constant always decides the same and has no state.
type constant struct{ numbers Numbers }

func (c *constant) Numbers() Numbers { return c.numbers }
func (*constant) CountsDenied() bool { return false }
func (c *constant) Words() int       { return 0 }
func (c *constant) MaxWords() int    { return 0 }

func (c *constant) Max() int64 {
	if c.numbers.Algorithm == Unlimited {
		return MaxInt
	}
	return 0
}

func (c *constant) Admits(_ []int64, _, n int64) bool { return n <= c.Max() }

func (c *constant) Read(_ []int64, _, n int64) Reading {
	r := Reading{Remaining: c.Max()}
	if n > r.Remaining {
		r.RetryAfter = Never
	}
	return r
}

func (c *constant) Charge(s []int64, _, _ int64) []int64        { return s }
func (c *constant) Refuse(s []int64, _, _ int64) []int64        { return s }
func (c *constant) Report(s []int64, _, _, _ int64) []int64     { return s }
func (c *constant) GiveBack(_ []int64, _, _, _ int64)           {}
func (c *constant) Adopt(s []int64, _ int64, _ Numbers) []int64 { return s }
func (c *constant) Count(s []int64, _, _, _ int64) []int64      { return s }
func (c *constant) Redate(_ []int64, _, _ int64) []int64        { return nil }
func (c *constant) Window() int64                               { return 0 }
func (c *constant) Reach() int64                                { return 0 }
func (c *constant) FreshAt(_ []int64) int64                     { return 0 }

func (c *constant) Constants() []int64 {
	return nil
}
