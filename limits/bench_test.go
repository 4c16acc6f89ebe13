package limits_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/document"
)

const overrides = 100_000

// large is a document with 100,000 overrides: of keys, with prefixes and networks between them.
func large() []byte {
	var b strings.Builder
	b.WriteString("limits:\n  api:\n    default: free\n    plans:\n      free: fixed-window 100/day\n      gold: fixed-window 200/day\n    overrides:\n")
	for i := range overrides {
		switch i % 100 {
		case 1:
			fmt.Fprintf(&b, "      - {prefix: \"tenant-%d:\", plan: gold}\n", i)
		case 2:
			fmt.Fprintf(&b, "      - {network: 10.%d.%d.0/24, plan: gold}\n", i/100>>8, i/100&255)
		default:
			fmt.Fprintf(&b, "      - {key: user-%d, policies: fixed-window %d/day}\n", i, 1000+i%50)
		}
	}
	b.WriteString("...\n")
	return []byte(b.String())
}

func BenchmarkFind(b *testing.B) {
	d, err := document.Parse(large())
	if err != nil {
		b.Fatal(err)
	}
	tables, _ := d.Tables()
	for name, format := range map[string]string{
		"Key": "user-%d", "Prefix": "tenant-%d:user-1", "Network": "10.1.%d.7", "None": "nobody-%d",
	} {
		keys := make([]string, 1<<14)
		for i := range keys {
			n := i * 7919 % overrides
			switch name {
			case "Prefix":
				n += 1 - n%100
			case "Network":
				n %= 256
			}
			keys[i] = fmt.Sprintf(format, n)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			table := tables["api"]
			var found *backend.Policies
			for i := 0; b.Loop(); i++ {
				found = table.Find("gold", keys[i%len(keys)])
			}
			runtime.KeepAlive(found)
		})
	}
}

// BenchmarkParse reports what it takes until a document can be looked up.
func BenchmarkParse(b *testing.B) {
	text := large()
	for b.Loop() {
		d, err := document.Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		d.Tables()
	}
	b.ReportMetric(float64(len(text))/1e6, "MB")
}
