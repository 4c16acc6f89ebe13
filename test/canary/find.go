package canary

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Canary is part of keys and secrets in tests, so that they are found in an output.
const Canary = "canarycanary"

// Verbs are the verbs of package fmt, with flags that change the output. The verb %p is not among
// them: it calls no methods. Besides, go vet refuses it for values that are no pointers.
var Verbs = []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%#x", "%d", "%t", "%T"}

// spellings are the canary as bytes may be printed.
var spellings = func() (all []string) {
	all = []string{Canary, strings.ToUpper(Canary), hex.EncodeToString([]byte(Canary)), strings.ToUpper(hex.EncodeToString([]byte(Canary)))}
	var numbers, hexes, spaced []string
	for _, c := range []byte(Canary) {
		numbers = append(numbers, strconv.Itoa(int(c)))
		hexes = append(hexes, fmt.Sprintf("0x%x", c))
		spaced = append(spaced, strconv.FormatUint(uint64(c), 16))
	}
	all = append(all, strings.Join(numbers, " "), strings.Join(numbers, ","), strings.Join(hexes, ", "), strings.Join(hexes, " "), strings.Join(spaced, " "))
	for shift := range 3 { // what base64 makes of the middle, wherever it begins
		text := base64.StdEncoding.EncodeToString([]byte("..."[:shift] + Canary))
		all = append(all, text[4:12])
	}
	return all
}()

// In reports whether the canary is in a text, however it is spelled, and the text around it.
func In(text string) (around string, found bool) {
	for _, spelling := range spellings {
		if i := strings.Index(text, spelling); i >= 0 {
			return text[max(0, i-100):min(len(text), i+100)], true
		}
	}
	return "", false
}

// Printed returns a value as package fmt prints it with all verbs, except those that are given.
func Printed(v any, except ...string) string {
	var b strings.Builder
	for _, verb := range Verbs {
		if !slices.Contains(except, verb) {
			fmt.Fprintf(&b, verb+"\n", v)
		}
	}
	return b.String()
}
