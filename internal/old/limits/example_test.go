package limits_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
)

const document = `{
  "limits": {
    "api": {
      "default": "free",
      "plans": {
        "free": {"minute": "sliding-log 60/minute", "day": "fixed-window 1000/day"},
        "gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 50000/day"}
      },
      "overrides": [
        {"key": "user-42", "plan": "gold", "note": "ticket 815"},
        {"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}}
      ]
    }
  }
}`

func Example() {
	ctx := context.Background()
	name := filepath.Join(os.TempDir(), "limits.json")
	if err := os.WriteFile(name, []byte(document), 0o600); err != nil {
		log.Fatal(err)
	}
	defer os.Remove(name)

	store := memstore.New(memstore.Config{})
	book, err := limits.Open(ctx, store, nil, limits.File(name), limits.Config{
		Changed: func(e limits.Event) {
			if e.State.Err != nil {
				log.Print("limits stay as they are: ", e.State.Err)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer book.Close()
	api, err := book.Limit("api")
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"user-1", "user-42", "acme:user-7"} {
		d, err := api.For("free", key).Allow(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, d)
	}
	// Output:
	// user-1 allowed by "minute": 59 of 60 left
	// user-42 allowed by "minute": 599 of 600 left
	// acme:user-7 allowed by "day": 999 of 1000 left
}

func ExampleParse() {
	_, err := limits.Parse([]byte(`{
  "limits": {
    "api": {
      "plans": {"free": "sliding-log 60/mintue", "gold": {"minute": "sliding-log 0/minute"}},
      "override": [{"key": 42, "plan": "gold"}]
    }
  }
}`), nil)
	fmt.Println(err)
	// Output:
	// line 3, column 5: limits.api: it needs a default: the plan of requests that name no plan, usually the smallest
	// line 4, column 38: limits.api.plans.free: "sliding-log 60/mintue": "mintue" is not a period: a number and us, ms, s, m, h or d, such as 30s, or one of second, minute, hour and day
	// line 4, column 70: limits.api.plans.gold.minute: "sliding-log 0/minute": a rate of 0 events: to refuse everything, use Blocked
	// line 5, column 7: limits.api: unknown field: one of default, plans, overrides
}

func ExampleCompare() {
	from, err := limits.Parse([]byte(`{"limits": {"api": {"plans": {"free": {"minute": "sliding-log 60/minute"}}}}}`), nil)
	if err != nil {
		log.Fatal(err)
	}
	to, err := limits.Parse([]byte(`{"limits": {"api": {"plans": {"free": {"minute": "token-bucket 2/second burst 60"}}}}}`), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(limits.Compare(from, to))
	// Output:
	// limit "api": plan free, minute: sliding-log 60/minute -> token-bucket 2/second burst 60
	// limit "api": plan free, what counts: minute (sliding-log) -> minute (token-bucket); usage is lost
}
