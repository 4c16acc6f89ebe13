package core_test

import (
	"encoding/json"
	"fmt"
	"log"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

func ExamplePolicy_UnmarshalText() {
	document := `{"search": "token-bucket 10/second burst 100", "login": "sliding-log 5/minute count-denied"}`
	var limits struct {
		Search core.Policy `json:"search"`
		Login  core.Policy `json:"login"`
	}
	if err := json.Unmarshal([]byte(document), &limits); err != nil {
		log.Fatal(err) // headgate: policy "...": what is wrong
	}
	search, err := core.New(memstore.New(memstore.Config{}), "search", limits.Search)
	if err != nil {
		log.Fatal(err) // also for a policy that the document lacks
	}
	fmt.Println(search.Policies(), limits.Login.CountsDenied())
	// Output:
	// ["search": token-bucket 10/second burst 100] true
}

func ExamplePolicy_UnmarshalText_faults() {
	for _, text := range []string{"sliding 60/minute", "sliding-log 60/minutes"} {
		var p core.Policy
		fmt.Println(p.UnmarshalText([]byte(text)))
	}
	// Output:
	// headgate: policy "sliding 60/minute": unknown algorithm "sliding": one of token-bucket, fixed-window, sliding-window, sliding-log, min-interval, unlimited, blocked
	// headgate: policy "sliding-log 60/minutes": "minutes" is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day
}
