//! A conversation by rumqttc: see tests/system/test_mqtt_clients.py.

use std::time::Duration;

const EACH: usize = 20;

macro_rules! converse {
    ($options:path, $client:path, $incoming:path, $publish:path, $qos:path, $topic:expr, $args:expr) => {{
        use $incoming as Event;
        use $publish as Packet;
        use $qos as Qos;
        let mut options = <$options>::new($args[3].clone(), "127.0.0.1", $args[1].parse().unwrap());
        options.set_keep_alive(Duration::from_secs(30));
        let (client, mut connection) = <$client>::new(options, 100);
        let name = $args[3].clone();
        client.subscribe(format!("{name}/#"), Qos::ExactlyOnce).unwrap();
        let levels = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];
        let writer = client.clone();
        let sending = std::thread::spawn(move || {
            for number in 0..EACH {
                for (level, qos) in levels.iter().enumerate() {
                    writer.publish(format!("{name}/{level}"), *qos, false, number.to_string()).unwrap();
                }
            }
        });
        let mut got = 0;
        for event in connection.iter() {
            if let Event::Incoming(Packet::Publish(message)) = event.unwrap() {
                let topic: String = $topic(&message.topic);
                println!("{} {} {}", topic, message.qos as u8, String::from_utf8_lossy(&message.payload));
                got += 1;
                if got == 3 * EACH {
                    client.disconnect().unwrap();
                    break;
                }
            }
        }
        sending.join().unwrap();
    }};
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[2] == "5" {
        converse!(
            rumqttc::v5::MqttOptions,
            rumqttc::v5::Client,
            rumqttc::v5::Event,
            rumqttc::v5::mqttbytes::v5::Packet,
            rumqttc::v5::mqttbytes::QoS,
            |topic: &[u8]| String::from_utf8(topic.to_vec()).unwrap(),
            args
        );
    } else {
        converse!(
            rumqttc::MqttOptions,
            rumqttc::Client,
            rumqttc::Event,
            rumqttc::Packet,
            rumqttc::QoS,
            |topic: &String| topic.clone(),
            args
        );
    }
}
