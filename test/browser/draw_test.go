package e2e

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A board is what is drawn of the file that Grafana imports.
type board struct {
	Title  string
	Panels []*panel

	From, To string
	Left     int // of the plots, in pixels
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []threshold }
			Custom     struct {
				LineWidth, FillOpacity float64
				Stacking               struct{ Mode string }
			}
		}
		Overrides []override
	}
	Targets []struct{ Expr, LegendFormat string }

	Row, Column, Width, Height int
	Opacity                    float64
	Values, Times              []tick
	Series                     []*series
}

// A threshold is the colour of values from a number on, or of all.
type threshold struct {
	Color string
	Value *float64
}

// An override has the colour of the series whose names match, as regexps between slashes.
type override struct {
	Matcher    struct{ ID, Options string }
	Properties []struct {
		ID    string
		Value struct{ FixedColor string }
	}
}

type tick struct {
	At    float64
	Label string
}

// A series has a value for each second, or NaN.
type series struct {
	Name, Last, Line, Area string
	Colour                 int

	values []float64
}

const (
	left  = 64 // pixels for the values of an axis
	times = 24 // for the times of the other, and half a value at the top
)

// draw computes where everything stands. The last values are those of an instant.
func (b *board) draw(t *testing.T, end time.Time) {
	t.Helper()
	for _, p := range b.Panels {
		p.Row, p.Column = p.GridPos.Y+1, p.GridPos.X+1
		width, height := 48*p.GridPos.W-26, 32*p.GridPos.H-42 // without the frame and the title
		switch p.Type {
		case "row":
		case "stat":
			p.Width, p.Height = width/len(p.Series)-8, height-54 // below a name and a number
			for _, s := range p.Series {
				present := slices.DeleteFunc(slices.Clone(s.values), math.IsNaN)
				last := present[len(present)-1]
				by, suffix := p.scale(t, last)
				s.Last = number(last/by) + suffix
				for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
					if step.Value == nil || last >= *step.Value {
						s.paint(t, step.Color)
					}
				}
				s.trace(make([]float64, len(s.values)), p.Width, p.Height, s.most())
			}
		case "timeseries":
			p.Width, p.Height = width-left, height-32 // above the names of the series
			p.chart(t, end)
		default:
			t.Errorf("%s: this test does not draw panels of the type %q", p.Title, p.Type)
		}
	}
}

// chart draws the series, one on the other if the panel stacks them, and the axes.
func (p *panel) chart(t *testing.T, end time.Time) {
	t.Helper()
	custom := p.FieldConfig.Defaults.Custom
	p.Opacity = custom.FillOpacity / 100
	seconds := len(p.Series[0].values) - 1
	floors := [][]float64{make([]float64, seconds+1)}
	highest := 0.0
	for i, s := range p.Series {
		for _, o := range p.FieldConfig.Overrides {
			if o.Matcher.ID != "byRegexp" || o.Properties[0].ID != "color" {
				t.Errorf("%s: this test does not know the override %+v", p.Title, o)
			} else if regexp.MustCompile(strings.Trim(o.Matcher.Options, "/")).MatchString(s.Name) {
				s.paint(t, o.Properties[0].Value.FixedColor)
			}
		}
		next := slices.Clone(floors[i])
		if custom.Stacking.Mode == "normal" {
			for j := range next {
				s.values[j] += next[j]
				if !math.IsNaN(s.values[j]) {
					next[j] = s.values[j]
				}
			}
		}
		floors = append(floors, next)
		highest = max(highest, s.most())
	}
	by, suffix := p.scale(t, highest)
	step := nice(highest / by / 4)
	steps := max(1, math.Ceil(highest/by/step))
	height := p.Height - times
	for i := 0.0; i <= steps; i++ {
		p.Values = append(p.Values, tick{float64(height) * (1 - i/steps), number(i*step) + suffix})
	}
	every := time.Duration(seconds/2) * time.Second
	for at := end.Truncate(every); end.Sub(at) < time.Duration(seconds)*time.Second; at = at.Add(-every) {
		x := float64(p.Width) * (1 - end.Sub(at).Seconds()/float64(seconds))
		if x < float64(p.Width-28) { // or the text would not fit
			p.Times = append(p.Times, tick{x, at.UTC().Format(time.TimeOnly)})
		}
	}
	for i, s := range p.Series {
		s.trace(floors[i], p.Width, height, steps*step*by)
	}
}

// paint gives a series a colour of Grafana's.
func (s *series) paint(t *testing.T, name string) {
	t.Helper()
	s.Colour = slices.Index([]string{"green", "orange", "blue", "red", "purple"}, name) // of board.html
	if s.Colour < 0 {
		t.Errorf("%s: this test does not know the colour %q", s.Name, name)
	}
}

// most returns the highest value.
func (s *series) most() float64 {
	return slices.Max(slices.DeleteFunc(slices.Clone(s.values), math.IsNaN))
}

// trace draws a series between a floor and the highest value of the axis, with gaps where there
// is no value.
func (s *series) trace(floor []float64, width, height int, highest float64) {
	if highest == 0 {
		highest = 1 // a line at the bottom
	}
	point := func(i int, v float64) string {
		return fmt.Sprintf("%.1f %.1f", float64(i*width)/float64(len(floor)-1), float64(height)*(1-v/highest))
	}
	var line, area strings.Builder
	for from := 0; from < len(floor); from++ {
		var there, back []string
		for ; from < len(floor) && !math.IsNaN(s.values[from]); from++ {
			there = append(there, point(from, s.values[from]))
			back = append(back, point(from, floor[from]))
		}
		if there == nil {
			continue
		}
		slices.Reverse(back)
		line.WriteString("M" + strings.Join(there, "L"))
		area.WriteString("M" + strings.Join(append(there, back...), "L") + "Z")
	}
	s.Line, s.Area = line.String(), area.String()
}

// scale returns by what values are divided to be written, and what stands behind them.
func (p *panel) scale(t *testing.T, highest float64) (by float64, suffix string) {
	t.Helper()
	switch unit := p.FieldConfig.Defaults.Unit; {
	case unit == "short":
		return 1, ""
	case unit == "ops":
		return 1, " ops/s"
	case unit == "percentunit":
		return .01, "%"
	case unit == "s" && highest < 1e-3:
		return 1e-6, " µs"
	case unit == "s" && highest < 1:
		return 1e-3, " ms"
	case unit == "s":
		return 1, " s"
	case unit == "bytes" && highest < 1<<10:
		return 1, " B"
	case unit == "bytes" && highest < 1<<20:
		return 1 << 10, " KiB"
	case unit == "bytes":
		return 1 << 20, " MiB"
	default:
		t.Errorf("%s: this test does not know the unit %q", p.Title, unit)
		return 1, ""
	}
}

// number returns a text with at most two digits after the point.
func number(x float64) string { return strconv.FormatFloat(math.Round(100*x)/100, 'f', -1, 64) }

// nice returns the next number of 1, 2, 5, 10, ... that is not less, or 1 for 0.
func nice(x float64) float64 {
	if x == 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= x {
			return digit * power
		}
	}
	return 10 * power
}
