//! Held against what a C program with `strtold`, `long double` and `%.17Lf` has answered.

use super::*;

/// Adds two texts as Redis does; `None` where one is refused or the sum is.
fn sum(one: &str, two: &str) -> Option<String> {
    let (one, two) = (LongDouble::parse(one.as_bytes())?, LongDouble::parse(two.as_bytes())?);
    one.plus(two).map(LongDouble::text)
}

#[test]
fn zz() {
    let mut bad = 0;
    for line in std::fs::read_to_string("/tmp/n5redis/ld.out").unwrap().lines() {
        let p: Vec<&str> = line.split(' ').collect();
        let i = LongDouble::parse(p[0].as_bytes()).is_some();
        let j = LongDouble::parse(p[1].as_bytes()).is_some();
        let got = if !i || !j {
            format!("bad{}{}", u8::from(i), u8::from(j))
        } else {
            sum(p[0], p[1]).unwrap_or("none".into())
        };
        if got != p[2] {
            bad += 1;
            if bad < 20 {
                println!("{} {}: {} not {}", p[0], p[1], got, p[2]);
            }
        }
    }
    assert_eq!(bad, 0);
}
