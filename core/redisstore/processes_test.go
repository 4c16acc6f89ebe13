package redisstore

func hammer(args []string) error { return nil }
