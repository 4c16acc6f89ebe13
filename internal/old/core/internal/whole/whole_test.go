package whole_test

import (
	"math"
	"testing"

	"github.com/headgate/headgate/internal/old/core/internal/whole"
)

func TestCeilDiv(t *testing.T) {
	for _, test := range []struct{ a, b, want int64 }{
		{0, 3, 0}, {1, 3, 1}, {3, 3, 1}, {4, 3, 2}, {-1, 3, 0}, {-4, 3, -1},
		{math.MaxInt64, math.MaxInt64, 1}, {math.MaxInt64, 2, 1 << 62}, {5, math.MaxInt64, 1},
	} {
		if got := whole.CeilDiv(test.a, test.b); got != test.want {
			t.Errorf("CeilDiv(%d, %d) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestMulDivUp(t *testing.T) {
	const most = math.MaxInt64
	for _, test := range []struct{ a, b, c, want int64 }{
		{0, 5, 3, 0}, {2, 3, 6, 1}, {2, 3, 5, 2}, {1 << 53, 1 << 52, 1 << 53, 1 << 52},
		{most, most, most, most}, {most, 2, 3, 6148914691236517205}, {most, 3, 1, most}, {most, most, 1, most},
		{most, most - 1, most - 1, most}, {most - 1, 3, 3, most - 1},
	} {
		if got := whole.MulDivUp(test.a, test.b, test.c); got != test.want {
			t.Errorf("MulDivUp(%d, %d, %d) = %d, want %d", test.a, test.b, test.c, got, test.want)
		}
	}
}
